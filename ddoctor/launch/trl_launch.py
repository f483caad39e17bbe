"""How TRL's command line starts its scripts by ``accelerate launch``.

Source: trl/cli/accelerate_config.py, which names the files that come with TRL; what no argument of
the script has that name goes to accelerate (trl/cli/commands/training.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ddoctor.evidence.launch import Setting
from ddoctor.launch.launchers import ACCELERATE
from ddoctor.launch.words import Word

OF_NAMES = {
    "multi_gpu": {"strategy": "ddp"},
    "fsdp1": {"strategy": "fsdp", "fsdp.version": "1"},
    "fsdp2": {"strategy": "fsdp", "fsdp.version": "2"},
    "zero1": {"strategy": "deepspeed", "zero-stage": "1"},
    "zero2": {"strategy": "deepspeed", "zero-stage": "2"},
    "zero3": {"strategy": "deepspeed", "zero-stage": "3"},
}
PASSED_ON = ("--num_processes", "--num_machines", "--machine_rank", "--main_process_ip")


def config(words: Sequence[Word]) -> Word | None:
    """The file or the name that TRL's command line gives to accelerate."""
    return next((value for name, value in _options(words) if name == "--accelerate_config"), None)


def passed_on(words: Sequence[Word]) -> Iterator[Setting]:
    """The options that accelerate gets, and not the script."""
    for name, value in _options(words):
        if name in PASSED_ON:
            yield value.setting(ACCELERATE.means.get(name[2:], name[2:]), value.text)


def of_name(named: Word) -> Iterator[Setting]:
    """What a file that comes with TRL says of the strategy."""
    for name, value in OF_NAMES.get(named.text, {}).items():
        yield named.setting(name, value)


def _options(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """The options that have values, each with its value."""
    for word, after in itertools.zip_longest(words, words[1:]):
        option, equals, value = word.text.partition("=")
        if equals:
            yield option, Word(text=value, file=word.file, line=word.line, resolved=word.resolved)
        elif after is not None:
            yield option, after
