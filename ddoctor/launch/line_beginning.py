"""What stands before a launcher on its line: `docker run`, `hf jobs run`, `ssh`, and the like."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.launch.programs import HERE, JOBS
from ddoctor.launch.shell import ASSIGNMENT
from ddoctor.launch.words import Word

ENGINES = ("docker", "podman")
OPTIONS = {
    "--shm-size": "shm",
    "-m": "memory-per-host",
    "--memory": "memory-per-host",
    "--cpus": "cpus-per-host",
}


def read(words: Sequence[Word]) -> Iterator[Setting]:
    """Yield what these words set for the launch, and ``elsewhere`` if it runs on another machine,
    in a container, or in another folder."""
    texts = [PurePath(word.text).name for word in words]
    if tuple(texts[: len(JOBS)]) == JOBS:
        yield words[0].setting("hf-jobs", " ".join(JOBS))
        yield from _options(words, {"--timeout": "time-limit"})
    engine = next((at for at, text in enumerate(texts) if text in ENGINES), None)
    if engine is not None and "run" in texts[engine:]:
        yield words[engine].setting("container", f"{texts[engine]} run")
        yield from _options(words, OPTIONS)
        yield from _of_container(words)
        if "--ipc=host" in texts or ("--ipc", "host") in itertools.pairwise(texts):
            yield words[engine].setting("host-ipc", "true")
    if texts[:3] == ["ray", "job", "submit"]:
        yield from _of_ray(words)
    for word, text in zip(words, texts, strict=True):
        if text not in HERE and not ASSIGNMENT.fullmatch(word.text):
            yield word.setting("elsewhere", text)
            return


def _of_container(words: Sequence[Word]) -> Iterator[Setting]:
    """The GPUs that a container gets.

    Source: docs.docker.com/engine/containers/gpu, "Access an NVIDIA GPU".
    """
    for one in _options(words, {"--gpus": "gpus"}):
        asked = one.value.strip("\"'")
        kind, _, value = asked.partition("=")
        if kind == "device" and "GPU-" not in value:
            yield with_fields(one, name="devices", value=value.partition(',"')[0])
        elif (value or asked).isdigit():
            yield with_fields(one, name="gpus-per-host", value=value or asked)


def _of_ray(words: Sequence[Word]) -> Iterator[Setting]:
    """Variables that the workers get: docs.ray.io, "Runtime Environments", ``env_vars``."""
    yield words[0].setting("ray.address", "ray job submit")
    # What a file gives them is not known here.
    yield from _options(words, {"--runtime-env": "ray.env."})
    for one in _options(words, {"--runtime-env-json": "runtime-env"}):
        with suppress(ValueError):
            asked = json.loads(one.value)
            given = asked.get("env_vars") if isinstance(asked, dict) else None
            for key, value in given.items() if isinstance(given, dict) else ():
                yield with_fields(one, name=f"env.{key}", value=str(value))
                yield with_fields(one, name=f"ray.env.{key}", value=str(value))


def _options(words: Sequence[Word], names: dict[str, str]) -> Iterator[Setting]:
    for word, after in itertools.zip_longest(words, words[1:]):
        name, equals, value = word.text.partition("=")
        if name in names:
            yield word.setting(names[name], value if equals or after is None else after.text)
