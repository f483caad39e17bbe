"""What a sound script may have that looks sick and is not; ``plain`` has nothing."""

from tests.ward.drawn.part import Part

TRAITS = (
    Part(name="plain", slots={}),
    Part(
        name="rare checkpoint",
        slots={"end": "if step % 1000 == 500 and rank == 0:\n    torch.save(model, os.devnull)"},
    ),
    Part(
        name="rare evaluation on all ranks",
        slots={
            "end": "if step % 400 == 399:\n    model.eval()\n    with torch.no_grad():\n"
            "        model.module($inputs)\n    model.train()"
        },
    ),
    Part(
        name="rare garbage collection",
        slots={"imports": "import gc", "end": "if step % 300 == 299:\n    gc.collect()"},
    ),
    Part(
        name="slow first steps",
        slots={"begin": "if step < 3:\n    time.sleep(0.3)"},
    ),
    Part(
        name="clipped gradients and a schedule",
        slots={
            "before": "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)",
            "between": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            "end": "schedule.step()",
        },
    ),
    Part(
        name="batches that differ alike on all ranks",
        slots={
            "begin": "few = len(labels) - 4 * (step % 4)\n"
            "$inputs, labels = $inputs[:few], labels[:few]"
        },
    ),
    Part(
        name="a rare sum over all ranks",
        slots={"end": "if step % 50 == 49:\n    dist.all_reduce(torch.tensor(float(rank)))"},
    ),
    Part(
        name="a loud neighbour for two seconds",
        slots={
            "imports": "import subprocess\nimport sys",
            "before": 'LOUD = "import time; end = time.time() + 2\\nwhile time.time() < end: pass"',
            "end": "if step == 30 and rank == 0:\n"
            '    subprocess.Popen([sys.executable, "-c", LOUD])',
        },
    ),
    Part(
        name="a thread that looks now and then",
        slots={
            "imports": "import threading",
            "before": "def look():\n    while True:\n        sum(range(20_000))\n"
            "        time.sleep(0.2)\n\nthreading.Thread(target=look, daemon=True).start()",
        },
    ),
    Part(
        name="an average of the weights",
        slots={
            "before": "average = [one.detach().clone() for one in model.parameters()]",
            "end": "weights = [one.detach() for one in model.parameters()]\n"
            "torch._foreach_lerp_(average, weights, 0.01)",
        },
    ),
)
