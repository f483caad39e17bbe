"""A sound training run on 8 H100s: stopped after the steps asked for, each rank with its CPUs."""

from __future__ import annotations

from ddoctor.evidence.training import (
    RankEnding,
    RankFlags,
    RankHost,
    RankStart,
    RankUse,
    Starts,
    TrainingRun,
    Trial,
    Trials,
    TrialTurn,
)
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES

GIB = 2**30
STEPS, WARM_UP = 60, 8
SECONDS = 0.2
"""Of a step."""

SECTIONS = (
    TrainingRun(
        command=("train.py", "--data", "/data"),
        seconds=29.0,
        ranks=tuple(
            RankEnding(
                rank=place.rank,
                host=HOST,
                pid=4100 + place.rank,
                outcome="stopped",
                steps=WARM_UP + STEPS,
                exit_code=0,
                time=28.5 + 0.02 * (place.rank * 5 % 8),
            )
            for place in PLACES
        ),
        optimizers=("AdamW",),
    ),
    RankUse(
        hosts=tuple(
            RankHost(
                rank=place.rank,
                host=HOST,
                local_ranks=8,
                threads=1,
                affinity=tuple(range(192)),
                host_cpus=192,
                workers=8,
                waited=0.001 * (place.rank * 3 % 4),
                neighbours=1.3,
            )
            for place in PLACES
        ),
        flags=tuple(
            RankFlags(
                rank=place.rank,
                device_name=place.device_name,
                capability=(9, 0),
                parameter_dtype="float32",
                autocast="bfloat16",
                matmul_precision="highest",
                cudnn_benchmark=False,
                cudnn_deterministic=False,
                input_shapes=1,
            )
            for place in PLACES
        ),
    ),
    Starts(
        ranks=tuple(
            RankStart(rank=place.rank, host=HOST, grown=3 * GIB, memory=2048 * GIB)
            for place in PLACES
        )
    ),
    Trials(
        trials=(
            Trial(
                change=("loader.num_workers=12",),
                without=(TrialTurn(seconds=0.2012), TrialTurn(seconds=0.1997)),
                with_it=(TrialTurn(seconds=0.2004), TrialTurn(seconds=0.2009)),
            ),
        )
    ),
)
