"""A second sound twin for mistakes that have one, and whose script has no other form.

Each: what the script with the mistake says, and what the sound one says instead.
"""

from __future__ import annotations

HELD = "{} if (step + 1) % 4 else contextlib.nullcontext()"
CASTS = "torch.autocast('cuda')"
SCHEDULE = "    scheduler = accelerator.prepare(scheduler)\n"
PREPARES = "model, optimizer = accelerator.prepare(net(), adam())"
WAITS = "accelerator.wait_for_everyone()"
WRITES = f"if accelerator.is_main_process:\n        packed(args.data)\n    {WAITS}"
SHARDS = "model = shard(model)\n"
BY_DIVISION = "rank // torch.cuda.device_count()"
LOGS = 'self.log("val_loss", loss)'

SECOND = {
    "a loader that Ray prepares": ("shuffle=True, ", ""),
    "a loader that accelerate does not know": (
        PREPARES,
        f"{PREPARES}\n    loader = accelerator.prepare_data_loader(loader)",
    ),
    "a loss of a part of the data under accelerate": (
        "total += model(**rows).loss",
        "total += accelerator.gather(model(**rows).loss).mean()",
    ),
    "re-entrant checkpoints with an adapter": ("'use_reentrant': True", "'use_reentrant': False"),
    "accelerate divides as well": ("loss / args.accumulation", "loss"),
    "accumulated by hand": (CASTS, HELD.format("accelerator.no_sync(model)")),
    "accumulated by hand, held back": (CASTS, HELD.format("model.no_sync()")),
    "a schedule of one rank's batches": (SCHEDULE, ""),
    "a schedule of one rank's batches, in two lines": (SCHEDULE, ""),
    "a cache beside checkpoints that a method switches on": ("use_cache=True", "use_cache=False"),
    "re-entrant with the search for unused parameters": (
        "unused_parameters=True",
        "unused_parameters=False",
    ),
    "an optimizer of groups in a function before FSDP": (
        f"    {SHARDS}",
        f"    {SHARDS}    optimizer = adam(model, 1e-3)\n",
    ),
    "an optimizer in a function before several ranks share the model": (
        f"        {SHARDS}",
        f"        {SHARDS}        optimizer = adam(model, 1e-3)\n",
    ),
    "a dataset that every rank writes": ("packed(args.data)", WRITES),
    "GPUs chosen under a test that uses CUDA": (
        "if torch.cuda.is_available():",
        "if 'SLURM_JOB_ID' in os.environ:",
    ),
    "an import that uses CUDA": ("import bitsandbytes", "import json"),
    "one GPU for all": ('"cuda:0"', '"cuda", int(os.environ["LOCAL_RANK"])'),
    "the number of the host as a GPU": (BY_DIVISION, "int(os.environ['LOCAL_RANK'])"),
    "the remainder by a subtraction": (BY_DIVISION, "dist.get_node_local_rank()"),
    "a mean that Lightning does not reduce": (
        LOGS,
        'self.log_dict({"val_loss": loss}, sync_dist=True)',
    ),
    "a metric that Lightning reduces": (
        LOGS,
        'self.log("val_loss", loss, on_epoch=True, sync_dist=True)',
    ),
    "chosen after a function that uses CUDA": ("    init()\n", "    prepare()\n"),
    "chosen after the import": ("torch.cuda.get_device_name()", "torch.__version__"),
}
