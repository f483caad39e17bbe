"""The patients: which script with which fault, what has to be told of it, and the sound ones."""

from __future__ import annotations

from functools import partial

from tests.ward.case import GREAT, LOUD, QUIET, Case, Graded, doses, sizes

Images = partial(Case, script="images")
Epochs = partial(Case, script="short_epochs")
Text = partial(Case, script="text")
Keeping = partial(Case, script="trainer")
Regression = partial(Case, script="regression")
ByHand = partial(Case, script="by_hand")
Accelerated = partial(Case, script="accelerated", requires="accelerate")
Fine = partial(Case, script="hf_trainer", requires="transformers")
Lit = partial(Case, script="lightning_module", requires="lightning")
Fabric = partial(Case, script="fabric_loop", requires="lightning")
Tuned = partial(Case, script="sft", requires="trl")
Updated = partial(Case, script="sgd_by_hand")
Language = partial(Case, script="fsdp_language")
Halves = partial(Case, script="tensor_parallel")
Stages = partial(Case, script="pipelined")
Wrapped = partial(Case, script="wrapped", base=("--batch-size=512",))
Local = partial(Case, script="local_sgd")
Planned = partial(Case, script="accelerate_fsdp2", requires="accelerate")
Engine = partial(Case, script="deepspeed_engine", requires="deepspeed")
Preferences = partial(Case, script="preferences", requires="trl")
Rewards = partial(Case, script="rewards", requires="trl")

LOADING = (
    *doses(
        Images(
            name="one worker, slow storage",
            base=("--num-workers=1",),
            graded=Graded(option="--read-ms", per_step=32, hidden=True),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Images(
            name="decoding without workers",
            base=("--num-workers=0",),
            graded=Graded(option="--decode-ms", per_step=32),
            roots=("dataloader-bottleneck",),
            # Its dose is far from the threshold: no worker hides a part of it.
            sampled=True,
        )
    ),
    *doses(
        Images(
            name="slow storage on rank 1 only",
            base=("--num-workers=1",),
            fault=("--cold-cache-rank=1",),
            graded=Graded(option="--read-ms", per_step=32, hidden=True),
            roots=("dataloader-bottleneck",),
            rank=1,
        )
    ),
    *doses(
        Images(
            name="slow collate",
            base=("--num-workers=0",),
            graded=Graded(option="--collate-ms"),
            roots=("collate-bottleneck",),
        )
    ),
    *sizes(
        Epochs(
            name="workers start anew each epoch",
            base=("--epochs=200",),
            cure=("--persistent-workers",),
            roots=("worker-restart-each-epoch",),
        ),
        loud=("--batches=5",),
        quiet=("--batches=14",),
    ),
    *doses(
        Accelerated(
            name="Accelerate, slow items",
            graded=Graded(option="--read-ms", per_step=64),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Fine(
            name="Trainer of transformers, slow items",
            graded=Graded(option="--read-ms", per_step=8),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Lit(
            name="Lightning, slow items",
            graded=Graded(option="--read-ms", per_step=128),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Fabric(
            name="Fabric, slow items",
            graded=Graded(option="--read-ms", per_step=96),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Tuned(
            name="SFT of TRL with adapters, slow items",
            base=("--lora",),
            graded=Graded(option="--read-ms", per_step=8),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Updated(
            name="no optimizer, slow items",
            graded=Graded(option="--read-ms", per_step=96),
            roots=("dataloader-bottleneck",),
        )
    ),
    *doses(
        Case(
            name="FSDP2, slow items",
            script="sharded",
            base=("--batch-size=256",),
            graded=Graded(option="--item-ms", per_step=256),
            roots=("dataloader-bottleneck",),
        )
    ),
)

BALANCE = (
    *(
        case
        for kind, name, roots in (
            (Fabric, "Fabric", ("straggler-rank",)),
            (Tuned, "SFT of TRL", ("straggler-rank",)),
            # What it does longer is work on its batch.
            (Updated, "no optimizer", ("collate-bottleneck", "straggler-rank")),
        )
        for case in doses(
            kind(
                name=f"{name}, rank 1 is slow",
                fault=("--slow-rank=1",),
                graded=Graded(option="--extra-ms"),
                roots=roots,
                rank=1,
            )
        )
    ),
    *(
        case
        for where in ("forward", "backward", "metric")
        for case in doses(
            Case(
                name=f"rank 1 is slow in its {where}",
                script="quantised",
                fault=("--slow-rank=1", f"--where={where}"),
                graded=Graded(option="--extra-ms"),
                roots=("straggler-rank",),
                rank=1,
            )
        )
    ),
    *doses(
        Case(
            name="FSDP2, rank 1 is slow in its forward",
            script="sharded",
            fault=("--lookup-rank=1",),
            roots=("straggler-rank",),
            rank=1,
        ),
        loud=("--lookups=7",),
        quiet=("--lookups=3",),
    ),
    *doses(
        Text(
            name="longer documents on rank 1",
            roots=("uneven-work-per-rank",),
            rank=1,
        ),
        loud=("--longer=1.4",),
        quiet=("--longer=1.28",),
    ),
    *doses(
        Text(
            name="shuffled lengths",
            fault=("--lengths=shuffled",),
            roots=("uneven-work-per-rank",),
        ),
        loud=("--spread=0.6",),
        quiet=("--spread=0.36",),
    ),
    *doses(
        Case(
            name="two optimizers, larger batches on rank 0",
            script="adversarial",
            roots=("uneven-work-per-rank",),
            rank=0,
        ),
        loud=("--larger-share=1.45",),
        quiet=("--larger-share=1.3",),
    ),
    *doses(
        Keeping(name="rank 0 draws", roots=("rank0-extra-work",), rank=0),
        loud=("--draw-every=4",),
        quiet=("--draw-every=12",),
    ),
    *doses(
        Keeping(
            name="rank 0 validates",
            fault=("--validate-every=1",),
            roots=("rank0-extra-work",),
            rank=0,
        ),
        loud=("--validation-batches=2",),
        quiet=("--validation-batches=1",),
    ),
    *doses(
        Keeping(
            name="rank 0 saves",
            fault=("--save-every=5",),
            roots=("checkpoint-stall",),
            rank=0,
        ),
        loud=("--save-mb=60",),
        quiet=("--save-mb=20",),
    ),
    *doses(
        Keeping(
            name="garbage is collected each step",
            fault=("--collect-every=1",),
            # The pauses, or the calls in the loop that make them.
            roots=("gc-pause-straggler", "step-loop-overhead"),
        ),
        loud=("--records=100000",),
        quiet=("--records=30000",),
    ),
)

WRAPPER = (
    Case(
        name="a head that is never used",
        script="heads",
        fault=("--auxiliary=never",),
        roots=("ddp-unused-parameters",),
    ),
    Case(
        name="a head that rank 1 does not use",
        script="heads",
        fault=("--auxiliary=first-rank",),
        roots=("ddp-unused-parameters",),
        rank=1,
    ),
    Case(
        name="unused parameters are looked for, of many",
        script="heads",
        base=("--width=16", "--depth=400", "--batch-size=16"),
        fault=("--find-unused-parameters",),
        roots=("find-unused-parameters-unneeded",),
        dose=QUIET,
    ),
    *doses(
        Case(
            name="masks are broadcast",
            script="causal",
            roots=("ddp-buffer-broadcast-unneeded",),
        ),
        loud=("--context=2048",),
        quiet=("--context=1024",),
    ),
    *sizes(
        Case(
            name="gradients are reduced at each micro-step",
            script="accumulation",
            cure=("--no-sync",),
            roots=("gradient-sync-every-microstep",),
        ),
        loud=("--batch-size=48",),
        quiet=("--batch-size=128", "--accumulate=4"),
    ),
    Accelerated(
        name="Accelerate, micro-steps counted by hand",
        base=("--gradient-accumulation-steps=4", "--batch-size=32", "--batches=160"),
        fault=("--ignore-accumulation",),
        roots=("gradient-sync-every-microstep",),
        dose=LOUD,
    ),
    *sizes(
        ByHand(
            name="gradients are reduced one by one",
            fault=("--one-by-one",),
            roots=("many-small-collectives",),
        ),
        loud=("--depth=30", "--batch-size=64"),
        quiet=("--depth=16",),
    ),
    *sizes(
        Case(
            name="many parameters, little work",
            script="recommender",
            alone=True,
            # All that can be said of two ranks: the share of communication, or what it costs.
            roots=("communication-bound-step", "scaling-efficiency-low"),
        ),
        loud=("--width=512", "--batch-size=32"),
        quiet=("--width=512", "--batch-size=256"),
    ),
    Case(
        name="FSDP2, one unit",
        script="sharded",
        # Item by item the loader takes an eighth of the step, which is another fault.
        base=("--at-once",),
        fault=("--wrap=root",),
        roots=("fsdp-wrap-policy-wrong",),
    ),
)

DATA = (
    Epochs(
        name="no set_epoch",
        base=("--persistent-workers",),
        fault=("--same-order",),
        roots=("missing-set-epoch",),
    ),
    Epochs(
        name="no DistributedSampler",
        base=("--persistent-workers",),
        fault=("--sampler=random",),
        roots=("duplicate-data-across-ranks",),
    ),
    Accelerated(
        name="Accelerate, a loader that is not prepared",
        fault=("--bare-loader",),
        roots=("duplicate-data-across-ranks",),
    ),
    Case(
        name="a stream that all ranks read",
        script="stream",
        roots=("iterable-dataset-not-sharded",),
    ),
    Case(
        name="a stream that ends earlier on rank 1",
        script="stream",
        base=("--shard",),
        fault=("--files=53",),
        roots=("uneven-inputs-per-rank",),
        rank=1,
    ),
    Case(
        name="the same noise in each worker",
        script="denoise",
        roots=("identical-rng-across-workers",),
    ),
    ByHand(
        name="own noise on the gradients", fault=("--noise=0.01",), roots=("replicas-diverged",)
    ),
    ByHand(name="own start of each rank", fault=("--own-start",), roots=("replicas-diverged",)),
)

HOST = (
    *doses(
        Regression(
            name="more threads than CPUs",
            roots=("cpu-thread-oversubscription",),
        ),
        loud=("--threads=8",),
        quiet=("--threads=2",),
    ),
    Regression(
        name="all ranks on one CPU",
        fault=("--cpu=0",),
        roots=("cpu-affinity-wrong",),
        dose=LOUD,
    ),
    Regression(name="a CPU quota, loud", cpus=1.3, roots=("cpu-quota-throttled",), dose=LOUD),
    Regression(name="a CPU quota, quiet", cpus=1.7, roots=("cpu-quota-throttled",), dose=QUIET),
    Regression(
        name="losses are kept with their graph",
        fault=("--keep=losses",),
        roots=("autograd-graph-retained",),
    ),
    Regression(
        name="a sum of losses with its graph",
        fault=("--keep=total",),
        roots=("autograd-graph-retained",),
    ),
    Regression(
        name="inputs are kept",
        fault=("--keep=inputs",),
        roots=("host-memory-leak",),
    ),
)

ENDINGS = (
    *(
        kind(name=f"{name}, rank 1 raises", fault=(fault,), roots=("dead-rank",), rank=1)
        for kind, name, fault in (
            (Fabric, "Fabric", "--bad-batch=20"),
            (Tuned, "SFT of TRL", "--bad-step=20"),
            (Updated, "no optimizer", "--bad-batch=20"),
        )
    ),
    *(
        Regression(
            name=f"rank 1 ends: {how}",
            fault=(f"--fail={how}",),
            roots=("dead-rank",),
            rank=1,
        )
        for how in ("raise", "exit", "kill")
    ),
    Regression(
        name="one collective more on rank 0",
        fault=("--fail=skip",),
        # What the ranks do differently, or what it comes to when two collectives meet.
        roots=("rank-dependent-control-flow", "mismatched-collective-shapes"),
    ),
)

SOUND = (
    Images(name="images, workers keep up", base=("--read-ms=0.3", "--num-workers=2"), sampled=True),
    Images(name="images, without workers", base=("--num-workers=0",)),
    Epochs(name="short epochs, persistent workers", base=("--persistent-workers",)),
    Case(name="own autograd function", script="quantised"),
    Text(name="text of one length"),
    Text(name="text in buckets of like lengths", base=("--lengths=bucketed",)),
    Keeping(
        name="draws, saves, collects now and then",
        # Of a smaller model's step the loader, which has no workers, takes a tenth.
        base=("--width=512", "--draw-every=100", "--save-every=150", "--collect-every=100"),
    ),
    Case(
        name="a head used at every second step, which DDP is told",
        script="heads",
        base=("--auxiliary=even-steps", "--find-unused-parameters"),
    ),
    Case(name="masks that are not broadcast", script="causal", base=("--no-broadcast-buffers",)),
    Case(
        name="accumulation with no_sync",
        script="accumulation",
        base=("--no-sync",),
    ),
    ByHand(name="gradients averaged by hand, together"),
    Case(name="a stream that is shared out", script="stream", base=("--shard",)),
    Case(name="workers with seeds of their own", script="denoise", base=("--seed-workers",)),
    Case(name="two optimizers", script="adversarial"),
    Regression(name="regression"),
    Accelerated(name="Accelerate"),
    Accelerated(
        name="Accelerate, accumulation",
        base=("--gradient-accumulation-steps=4", "--batch-size=32", "--batches=160"),
    ),
    Fine(name="Trainer of transformers"),
    Case(name="FSDP2", script="sharded", base=("--batch-size=4096", "--at-once")),
    Lit(name="Lightning"),
    Fabric(name="Fabric"),
    Tuned(name="SFT of TRL"),
    Tuned(name="SFT of TRL with adapters", base=("--lora",)),
    Updated(name="no optimizer"),
)

FRAMEWORKS = (
    *(
        kind(
            name=f"{name}, slow items",
            graded=Graded(option=option, per_step=items),
            roots=("dataloader-bottleneck",),
            dose=GREAT,
        )
        for kind, name, option, items in (
            (Language, "FSDP1", "--lookup-ms", 24),
            (Halves, "tensor parallel", "--decode-ms", 64),
            (Stages, "a pipeline", "--tokenise-ms", 1),
            (Wrapped, "checkpointing", "--fetch-ms", 512),
            (Planned, "FSDP2 of Accelerate", "--query-ms", 64),
            (Engine, "DeepSpeed", "--fetch_ms", 64),
        )
    ),
    *(
        kind(
            name=f"{name}, rank 1 is slow",
            fault=(fault,),
            graded=Graded(option=option),
            # What it does longer is work on its batch, or may be.
            roots=("straggler-rank", "collate-bottleneck"),
            rank=1,
            dose=GREAT,
        )
        for kind, name, fault, option in (
            (Language, "FSDP1", "--filter-rank=1", "--filter-ms"),
            (Halves, "tensor parallel", "--profile-rank=1", "--profile-ms"),
            (Stages, "a pipeline", "--schedule=1f1b", "--metrics-ms"),
            (Local, "Local SGD", "--report-rank=1", "--report-ms"),
            (Planned, "FSDP2 of Accelerate", "--audit-rank=1", "--audit-ms"),
            (Engine, "DeepSpeed", "--slow_rank=1", "--slow_ms"),
            (Preferences, "DPO of TRL", "--upload-rank=1", "--upload-ms"),
        )
    ),
    Rewards(
        name="GRPO of TRL, a slow judge of rank 1",
        fault=("--judge-rank=1", "--judge-ms=200"),
        roots=("straggler-rank",),
        rank=1,
    ),
    *(
        kind(name=f"{name}, rank 1 raises", fault=(fault,), roots=("dead-rank",), rank=1)
        for kind, name, fault in (
            (Language, "FSDP1", "--corrupt-step=15"),
            (Halves, "tensor parallel", "--fail-at=15"),
            (Stages, "a pipeline", "--crash-at=15"),
            (Wrapped, "a static graph", "--break-at=15"),
            (Local, "Local SGD", "--fail-step=15"),
            (Planned, "FSDP2 of Accelerate", "--fail-at=15"),
            (Engine, "DeepSpeed", "--raise_at=15"),
            (Preferences, "DPO of TRL", "--bad-step=15"),
            (Rewards, "GRPO of TRL", "--fail-at=15"),
        )
    ),
    Wrapped(
        name="a sharded optimizer, rank 0 draws",
        base=("--batch-size=512", "--zero"),
        fault=("--thumbnail-every=1",),
        graded=Graded(option="--thumbnail-ms"),
        roots=("rank0-extra-work",),
        rank=0,
        dose=GREAT,
    ),
    Wrapped(name="a second head", fault=("--contrastive",), roots=("ddp-unused-parameters",)),
    Language(name="FSDP1, with a worker", base=("--num-workers=1",)),
    Language(name="FSDP1, gradients only", base=("--strategy=SHARD_GRAD_OP",)),
    Language(name="FSDP1, validation now and then", base=("--eval-every=20",)),
    Halves(name="tensor parallel, with a worker", base=("--workers=1",)),
    Halves(name="tensor parallel, accumulation", base=("--workers=1", "--accumulate=2")),
    Halves(name="tensor parallel, validation", base=("--workers=1", "--validate-every=20")),
    Stages(name="a pipeline, GPipe"),
    Stages(name="a pipeline, 1F1B", base=("--schedule=1f1b",)),
    Stages(name="a pipeline, more micro-batches", base=("--microbatches=8",)),
    Wrapped(
        name="a static graph, checkpointing",
        base=("--batch-size=512", "--static-graph", "--checkpointing"),
    ),
    Wrapped(
        name="compiled, a hook for gradients",
        base=("--batch-size=512", "--compile=aot_eager", "--fp16-hook", "--loader-workers=1"),
    ),
    Wrapped(name="a sharded optimizer", base=("--batch-size=512", "--zero")),
    Local(name="Local SGD"),
    Local(name="Local SGD by hand", base=("--by-hand",)),
    Planned(name="FSDP2 of Accelerate, with a worker", base=("--workers=1",)),
    Planned(
        name="FSDP2 of Accelerate, accumulation",
        base=("--workers=1", "--accumulate=2"),
    ),
    *(Engine(name=f"DeepSpeed, stage {n}", base=(f"--stage={n}",)) for n in (1, 2, 3)),
    Preferences(name="DPO of TRL"),
    Preferences(name="DPO of TRL with adapters", base=("--lora", "--num-workers=1")),
    Rewards(name="GRPO of TRL"),
)

CASES = (*LOADING, *BALANCE, *WRAPPER, *DATA, *HOST, *ENDINGS, *FRAMEWORKS, *SOUND)
