"""Options of DDP and of torch's backends."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, SET_UP, STEP, ddp

KWARGS = "from accelerate{} import DistributedDataParallelKwargs as Wraps\n"


def wrapped(options: str, module: str = "") -> str:
    handler = f"Accelerator(kwargs_handlers=[Wraps({options})], "
    return KWARGS.format(module) + ACCELERATE.replace("Accelerator(g", f"{handler}g")


MATMUL = "torch.backends.cuda.matmul.allow_tf32 = False\n"
CUDNN = "torch.backends.cudnn.allow_tf32 = False\n"
OFF = "torch.backends.cudnn.enabled = {}\n"
MIXED = STEP.replace("loss =", "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss =")
BOTH = "find_unused_parameters=True, static_graph=True"
TWINS = {
    "a search beside a static graph, by accelerate": (
        "find-unused-parameters-unneeded",
        wrapped(BOTH),
        wrapped("static_graph=True"),
        wrapped("find_unused_parameters=True"),
    ),
    "cuDNN off": (
        "torch-backend-flags-misset",
        ddp(set_up=SET_UP + OFF.format(False)),
        ddp(set_up=SET_UP + OFF.format(True)),
        ddp(set_up=SET_UP + OFF.format("args.cudnn")),
        ddp(set_up=f"{SET_UP}if args.checks:\n    {OFF.format(False)}"),
    ),
    "TF32 off": (
        "torch-backend-flags-misset",
        ddp(set_up=SET_UP + MATMUL + CUDNN),
        ddp(set_up=SET_UP + MATMUL),
        ddp(set_up=SET_UP + MATMUL + CUDNN, step=MIXED),
        ddp(set_up=SET_UP.replace("DDP(Net()", "DDP(Net().to(torch.bfloat16)") + MATMUL + CUDNN),
        ddp(set_up=SET_UP + MATMUL + CUDNN + 'torch.set_float32_matmul_precision("high")\n'),
    ),
    "the same by accelerate's utilities": (
        "find-unused-parameters-unneeded",
        wrapped(BOTH, ".utils"),
        wrapped(BOTH.replace("True", "args.searches", 1), ".utils"),
        wrapped(BOTH.replace("static_graph=True", "static_graph=False"), ".utils"),
    ),
}
