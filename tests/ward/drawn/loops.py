"""Styles of the training loop."""

from tests.ward.drawn.part import Part

STEP = """
[[begin]]
optimizer.zero_grad()
loss = criterion(model($inputs), labels)
loss.backward()
[[between]]
optimizer.step()
[[end]]
step += 1
report(step)
"""
LOOPS = (
    Part(
        name="epochs",
        slots={
            "step": STEP,
            "loop": """
step, epoch = 0, 0
while step < args.steps:
    [[epoch]]
    for $inputs, labels in loader:
        [[step]]
    epoch += 1
""",
        },
    ),
    Part(
        name="iterator",
        slots={
            "step": STEP,
            "loop": """
step, epoch = 0, 0
batches = iter(loader)
while step < args.steps:
    try:
        $inputs, labels = next(batches)
    except StopIteration:
        epoch += 1
        [[epoch]]
        batches = iter(loader)
        continue
    [[step]]
""",
        },
    ),
    Part(
        name="function",
        slots={
            "step": STEP,
            "loop": """
def train_epoch(epoch, step):
    model.train()
    [[epoch]]
    for $inputs, labels in loader:
        [[step]]
    return step


step = 0
for epoch in range(args.steps):
    step = train_epoch(epoch, step)
""",
        },
    ),
    Part(
        name="trainer",
        slots={
            "step": STEP,
            "loop": """
class Trainer:
    def __init__(self):
        self.done = 0

    def step(self, $inputs, labels):
        step = self.done
        [[step]]
        self.done = step

    def fit(self, epochs):
        for epoch in range(epochs):
            [[epoch]]
            for $inputs, labels in loader:
                self.step($inputs, labels)


Trainer().fit(args.steps)
""",
        },
    ),
    Part(
        name="generator",
        slots={
            "imports": "from itertools import islice",
            "step": STEP,
            "loop": """
def batches():
    epoch = 0
    while True:
        [[epoch]]
        yield from loader
        epoch += 1


for step, ($inputs, labels) in enumerate(islice(batches(), args.steps)):
    [[step]]
""",
        },
    ),
    Part(
        name="accumulation",
        slots={
            "imports": "from contextlib import nullcontext",
            "loop": """
step, epoch = 0, 0
while step < args.steps:
    [[epoch]]
    for micro, ($inputs, labels) in enumerate(loader):
        full = micro % $micros == $micros - 1
        [[begin]]
        with nullcontext() if full else model.no_sync():
            (criterion(model($inputs), labels) / $micros).backward()
        if full:
            [[between]]
            optimizer.step()
            optimizer.zero_grad()
            [[end]]
            step += 1
            report(step)
    epoch += 1
""",
        },
    ),
)
