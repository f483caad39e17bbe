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
)
