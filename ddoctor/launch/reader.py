"""Reads a launch command through everything around it, down to the script."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import msgspec

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Launch, Setting, Unknown
from ddoctor.launch import (
    accelerate_config,
    compose,
    deepspeed_hosts,
    files,
    installed_keys,
    kubernetes,
    launch_variables,
    line_beginning,
    mpi_options,
    own_ranks,
    pins,
    recipes,
    script_settings,
    shell,
    slurm_variables,
    trl_launch,
    xla_devices,
)
from ddoctor.launch.launchers import (
    ACCELERATE,
    DEEPSPEED,
    MPIRUN,
    SLURM,
    TORCH_LAUNCH,
    Launcher,
)
from ddoctor.launch.option_source import Parsed
from ddoctor.launch.programs import (
    COMMANDS,
    CONSOLE,
    MODULES,
    PROGRAMS,
    PYTHON,
    REMOTE,
    SHELL_SCRIPTS,
    SHELLS,
    STARTERS,
    starts,
)
from ddoctor.launch.shell import ASSIGNMENT, OF_COMMANDS, Script
from ddoctor.launch.words import Command, Word, typed

MANIFESTS = (".yaml", ".yml")
MOST_NESTED = 8
"""Scripts and schedulers within each other."""

RECORDER = "ddoctor.probe"
NOT_PASSED, BESIDE = "not-passed.", "beside"
"""Beginnings of names of what a shell on another machine does not get, and of what runs besides."""
NOTHING: Mapping[str, Setting] = {}
# ssh_config(5), SendEnv and SetEnv. What a file sets there is not known.
# The activation of a virtual environment sets none of those that matter.
PASSED_BY_SSH = re.compile(r"SendEnv|SetEnv|(?:^|[\s;&])(?:source|\.)\s+(?!\S*\bactivate\b)")
PLACEHOLDER = re.compile(r"<[A-Za-z][\w .-]*>|\bYOUR[_-]\w+|\bPATH_TO\b|\{\{.*\}\}")


@dataclass
class _Found:
    """What is known so far."""

    command: tuple[str, ...]
    folder: Path
    settings: list[Setting] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    unresolved: list[Setting] = field(default_factory=list)

    @contextmanager
    def told_if_unreadable(self, at: Word) -> Iterator[None]:
        """Continue without a file that cannot be read, and keep why."""
        try:
            yield
        except DoctorError as error:
            # A script may name files that only exist where and when it runs.
            later = bool(at.file) and isinstance(error.__cause__, FileNotFoundError)
            if later or isinstance(error, files.ReadOnce):
                self.unresolved.append(at.setting("file", str(error)))
            else:
                self.settings.append(at.setting("unreadable", str(error)))


def read(command: Sequence[str], folder: Path) -> Launch:
    """Read a launch command, typed in a folder; nothing of it is executed.

    Raises:
        DoctorError: it starts no training that could be found, or a file of it cannot be read.
    """
    found = _Found(tuple(command), folder)
    manifest = kubernetes.applied(command)
    if len(command) == 1 and command[0].endswith(MANIFESTS):
        manifest = command[0]
    inner = compose.commands(command, folder)
    if manifest:
        inner = kubernetes.commands(folder / manifest, manifest)
    if inner:
        launches = [_launch(one, found, ()) for one in inner]
    elif (recipe := recipes.read(command, folder)) is not None:
        found.files.append(recipe.name)
        around = Command(words=(), variables=recipe.variables, settings=recipe.settings)
        launches = [_of_script(recipe.name, recipe.text, (), around, found, ())]
    else:
        launches = [_launch(typed(command), found, ())]
    known = [one for one in launches if one is not None]
    if not known:
        hidden = next((f": {one.at} runs `{one.value}`" for one in found.unresolved), "")
        what = "; give what it stands for" if hidden else ": give it as you would type it"
        raise DoctorError(
            f"no launch of a training was found in `{' '.join(command[:4])}`{hidden}{what}, such "
            "as ddoctor doctor -- torchrun --nproc-per-node 2 train.py"
        )
    return installed_keys.judged(known[-1], script_file(known[-1], folder), folder)


def script_file(launch: Launch, folder: Path) -> Path | None:
    """The script of a launch; None: it is no file here."""
    places = script_settings.paths(launch.script, folder, is_module=launch.is_module)
    return next((path for path in places if files.is_there(path)), None) if launch.script else None


def _launch(command: Command, found: _Found, around: tuple[str, ...]) -> Launch | None:
    """What a command launches; None: no training."""
    words = command.words
    begin = next((at for at, word in enumerate(words) if starts(word.text)), None)
    if begin is None or len(around) > MOST_NESTED:
        return None
    found.settings += line_beginning.read(words[:begin])
    variables = (
        *command.variables,
        *(
            word.setting(match["name"], match["value"])
            for before, word in zip((None, *words), words[:begin], strict=False)
            if (match := ASSIGNMENT.fullmatch(word.text))
            and (before is None or before.text != "--ulimit")
        ),
    )
    command = replace(command, words=words[begin:], variables=variables)
    first, name = words[begin], PurePath(words[begin].text).name
    if name in REMOTE:
        return _of_remote(command, found, (*around, name))
    if name in SHELLS or name.endswith(SHELL_SCRIPTS):
        return _of_shell(command, found, around)
    if PYTHON.fullmatch(name):
        return _of_python(command, found, around)
    if name == "trl" and (named := trl_launch.config(command.words)):
        return _of_trl(command, named, found, around)
    if name in CONSOLE or name.endswith(".py"):
        return _built(command, "python", 0, found, around)
    if name in STARTERS:
        return _of_starter(command, PROGRAMS[name], found, (*around, name))
    if name in COMMANDS:
        rest = 1 + len(COMMANDS[name])
        if command.texts[1:rest] != COMMANDS[name]:
            return None
        command = replace(command, words=(first, *command.words[rest:]))
    return _of_launcher(command, PROGRAMS[name], found, around)


def _of_shell(command: Command, found: _Found, around: tuple[str, ...]) -> Launch | None:
    """The last training that a shell script launches."""
    texts = command.texts
    rest = list(itertools.dropwhile(lambda text: text.startswith("-"), texts[1:]))
    if PurePath(texts[0]).name not in SHELLS:
        rest = list(texts)
    if not rest:
        return None
    if any(OF_COMMANDS.fullmatch(one) for one in texts[1 : len(texts) - len(rest) + 1]):
        given = command.words[len(texts) - len(rest)]
        around = (*around, PurePath(texts[0]).name)
        if given.early:
            found.settings.append(given.setting("put-in-early", given.text))
        return _of_script("", given.text, rest[1:], command, found, around, given)
    name = rest[0]
    text = files.text(found.folder / name, name)
    found.files.append(name)
    return _of_script(name, text, rest[1:], command, found, around)


def _of_remote(command: Command, found: _Found, around: tuple[str, ...]) -> Launch | None:
    """What the shells of other machines get: a text in quotes, or the words of the line."""
    words = command.words
    found.settings.append(words[0].setting("elsewhere", words[0].text))
    if not any(PASSED_BY_SSH.search(one) for one in command.texts):
        found.settings += [
            msgspec.structs.replace(one, name=f"{NOT_PASSED}{one.name}")
            for one in command.variables
        ]
        command = replace(command, variables=())
    for at, word in enumerate(words[1:], 1):
        if len(word.text.split()) > 1:
            launch = _of_script("", word.text, (), command, found, around, word)
            if launch is not None:
                return launch
        elif starts(word.text):
            return _launch(replace(command, words=words[at:]), found, around)
    return None


def _of_script(
    name: str,
    text: str,
    arguments: Sequence[str],
    command: Command,
    found: _Found,
    around: tuple[str, ...],
    within: Word | None = None,
) -> Launch | None:
    """The last training that a script launches; ``within``: the word of a line that holds it."""
    own, _ = _parsed(SLURM, [*shell.directives(text, name)], found)
    script = Script(
        file=name or (within.file if within is not None else ""),
        rows=within.rows if within is not None else (),
        unless=within.unless if within is not None else "",
        arguments=arguments,
        variables={one.name: one for one in command.variables},
        exported={one.name for one in command.variables},
        given=slurm_variables.of_job([*found.settings, *own]),
        folder=found.folder,
    )
    every = [*script.commands(text)]
    broken = [word.setting("broken-continuation", word.text) for word in script.broken]
    around = (*around, PurePath(name).name) if name else around
    settings = (*own, *command.settings)
    launch = None
    for one in reversed(every):
        # What another command sets counts for that one alone.
        mark = len(found.settings)
        try:
            launch = _launch(replace(one, settings=settings), found, around)
        except DoctorError as error:
            # A script may name files that only exist where and when it runs.
            found.unresolved.append(one.words[0].setting("file", str(error)))
            continue
        if launch is not None:
            break
        del found.settings[mark:]
    if launch is not None:
        found_beside = _beside(every[: every.index(one)], settings, found.folder, launch.script)
        launch = msgspec.structs.replace(launch, settings=(*launch.settings, *found_beside))
    if launch is None:
        programs = [one.words[0] for one in every if not one.words[0].resolved]
        found.unresolved += [word.setting("program", word.text) for word in programs]
        return None
    depends = [word.setting("condition", word.text) for word in script.conditional]
    return msgspec.structs.replace(
        launch,
        settings=(*launch.settings, *broken),
        unresolved=(*launch.unresolved, *depends),
    )


def _beside(
    earlier: Sequence[Command], settings: tuple[Setting, ...], folder: Path, script: str
) -> Iterator[Setting]:
    """What still runs as a later launch starts, and the ports of launches on this machine.

    Of the same script on other machines, also the variables that it does not get there.
    """
    running: list[Setting] = []
    for one in earlier:
        if one.texts == ("wait",):
            running.clear()
        elif one.beside:
            running.append(one.words[0].setting("beside", one.words[0].text))
            other = _Found(one.texts, folder)
            with suppress(DoctorError):
                launch = _launch(replace(one, settings=settings), other, ())
                if launch is not None and launch.get("host-rank") is not None:
                    running.append(one.words[0].setting("beside.seat", launch.seat))
                remote = launch.get("elsewhere") if launch is not None else None
                if launch is not None and remote is not None and launch.script == script:
                    lost = [
                        msgspec.structs.replace(setting, name=f"{BESIDE}.{setting.name}")
                        for setting in launch.settings
                        if setting.name.startswith(NOT_PASSED)
                        and launch.get(f"env.{setting.name.removeprefix(NOT_PASSED)}") is None
                    ]
                    running += [msgspec.structs.replace(remote, name=f"{BESIDE}.elsewhere"), *lost]
                if launch is not None and remote is None:
                    port = launch.get("main-port", "env.MASTER_PORT")
                    value = port.value if port is not None else ""
                    running.append(one.words[0].setting(f"beside.{launch.launcher}", value))
    yield from running


def _of_starter(
    command: Command, launcher: Launcher, found: _Found, around: tuple[str, ...]
) -> Launch | None:
    settings, parsed = _parsed(launcher, command.words[1:], found)
    found.settings += settings
    passed: list[Setting] = []
    if launcher is MPIRUN:
        found.settings += mpi_options.read(settings, parsed, found.folder)
        passed += mpi_options.variables(command.words[1:], parsed)
    rest = replace(
        command,
        words=command.words[1 + parsed.rest :],
        variables=(*command.variables, *passed),
    )
    if wrapped := next((one for one in parsed.given if one.key == "wrap"), None):
        within = replace(command.words[1 + wrapped.word], text=wrapped.value)
        return _of_script("", within.text, (), command, found, around, within)
    if not rest.words:
        return None
    if around[-1] == "sbatch":
        name = rest.words[0].text
        found.files.append(name)
        text = files.text(found.folder / name, name)
        return _of_script(name, text, rest.texts[1:], command, found, around)
    return _launch(rest, found, around)


def _of_python(command: Command, found: _Found, around: tuple[str, ...]) -> Launch | None:
    at, words = 1, command.words
    while at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        if option == "-c":
            return None
        if option == "-m":
            module = words[at + 1].text if at + 1 < len(words) else ""
            if module in MODULES:
                inner = replace(command, words=words[at + 1 :])
                return _of_launcher(inner, MODULES[module], found, around)
            return _built(command, "python", at + 1, found, around, is_module=True)
        at += 2 if option in ("-W", "-X") else 1
    if at >= len(words):
        return None
    return _built(command, "python", at, found, around)


def _of_launcher(
    command: Command, launcher: Launcher, found: _Found, around: tuple[str, ...]
) -> Launch | None:
    settings, parsed = _parsed(launcher, command.words[1:], found)
    at = 1 + parsed.rest
    if at >= len(command.words):
        raise DoctorError(f"{launcher.title} has no script: put it after the options")
    found.settings += settings
    given = {one.key: one.value for one in parsed.given}
    if launcher is ACCELERATE:
        _read_config(given.get("config_file"), command.words[0], found)
        found.settings = xla_devices.without_ranks(found.settings)
    if launcher is DEEPSPEED:
        with found.told_if_unreadable(command.words[0]):
            found.settings += deepspeed_hosts.read(settings, found.folder)
    found.settings += launch_variables.read(command.variables, launcher)
    appended: dict[str, Setting] = {}
    if launcher is TORCH_LAUNCH and "use_env" not in given:
        added = f"added by {launcher.title}"
        appended["--local-rank"] = Setting(name="--local-rank", value="0", origin=added)
    found.settings += _defaults(launcher)
    if given.get("no_python") == "true":
        command, at = _of_program(command, at, found)
    return _built(
        command,
        launcher.title.split()[0],
        at,
        found,
        around,
        is_module=given.get("module") == "true",
        appended=appended,
    )


def _of_program(command: Command, at: int, found: _Found) -> tuple[Command, int]:
    """A command that each rank runs, as its script; what else than Python does is not known."""
    words = [*command.words]
    if PYTHON.fullmatch(PurePath(words[at].text).name):
        later = range(at + 1, len(words))
        script = next((one for one in later if not words[one].text.startswith("-")), at)
        return command, script
    found.unresolved.append(words[at].setting("program", words[at].text))
    words[at] = replace(words[at], text="")
    return replace(command, words=tuple(words)), at


def _of_trl(command: Command, named: Word, found: _Found, around: tuple[str, ...]) -> Launch:
    """TRL starts its script by ``accelerate launch``; docs of TRL, "Command Line Interfaces"."""
    if files.is_there(found.folder / named.text):
        _read_config(named.text, named, found)
    else:
        # One of those that come with TRL.
        found.unresolved.append(named.setting("accelerate_config", named.text))
        found.settings += trl_launch.of_name(named)
    found.settings[:0] = trl_launch.passed_on(command.words)
    found.settings += _defaults(ACCELERATE)
    return _built(command, "accelerate", 0, found, around)


def _read_config(name: str | None, at: Word, found: _Found) -> None:
    """Read accelerate's file, and the one of DeepSpeed that it names."""
    with found.told_if_unreadable(at):
        config = accelerate_config.read(name, found.folder)
        found.settings += config.settings
        found.files += config.files
        found.unknown += config.unknown
        found.settings += _of_deepspeed_file(found)


def _of_deepspeed_file(found: _Found) -> Iterator[Setting]:
    """DeepSpeed's file that accelerate's line or file names, if it is here."""
    named = next((one for one in found.settings if one.name == "deepspeed-file"), None)
    if named is not None and files.is_there(found.folder / named.value):
        found.files.append(named.value)
        yield from files.settings(found.folder / named.value, named.value, "deepspeed.")


def _defaults(launcher: Launcher) -> Iterator[Setting]:
    for name, value in launcher.defaults.items():
        yield Setting(name=name, value=value, origin=f"the default of {launcher.title}")


def _parsed(
    launcher: Launcher, words: Sequence[Word], found: _Found
) -> tuple[list[Setting], Parsed]:
    """The options of a launcher as settings, and where its command begins."""
    parsed = launcher.options.parse([word.text for word in words])
    settings: list[Setting] = []
    for one in parsed.given:
        last = words[min(one.word + 1, len(words) - 1)]
        if not (words[one.word].resolved and (last.resolved or "=" in words[one.word].text)):
            found.unresolved.append(words[one.word].setting(one.key, one.value))
        name = launcher.means.get(one.key, f"{launcher.title.split()[0]}.{one.key}")
        settings.append(words[one.word].setting(name, one.value))
    # The last of several counts.
    settings.reverse()
    if launcher.is_known:
        found.unknown += [
            Unknown(
                setting=words[one.word].setting(one.key, one.value),
                of=launcher.title,
                nearest=launcher.options.nearest(one.key),
            )
            for one in parsed.unknown
        ]
    return settings, parsed


def _built(
    command: Command,
    launcher: str,
    at: int,
    found: _Found,
    around: tuple[str, ...],
    *,
    is_module: bool = False,
    appended: Mapping[str, Setting] = NOTHING,
) -> Launch:
    if is_module and command.words[at].text == RECORDER:
        # It runs the script that follows its own options.
        later = range(at + 1, len(command.words))
        inner = next((one for one in later if command.words[one].text.endswith(".py")), None)
        at, is_module = (inner, False) if inner is not None else (at, True)
    script, arguments = command.words[at], command.words[at + 1 :]
    if arguments and arguments[0].text == "--":
        # argparse takes it away.
        arguments = arguments[1:]
    given = script_settings.read(
        script, arguments, found.folder, is_module=is_module, appended=appended
    )
    found.files += given.files
    found.settings += command.settings
    if _is_missing(script, found, is_module=is_module):
        found.settings.append(script.setting("missing", script.text))
    found.settings += [
        msgspec.structs.replace(one, name=f"env.{one.name}") for one in reversed(command.variables)
    ]
    found.unresolved += [
        word.setting("argument", word.text) for word in (script, *arguments) if not word.resolved
    ]
    # Of a script's arguments, <cat-toy> may be a value.
    placeholders = [word for word in command.words[:at] if PLACEHOLDER.search(word.text)]
    found.settings += [word.setting("placeholder", word.text) for word in placeholders]
    found.settings += pins.read(found.folder)
    by_lightning = [one for one in given.settings if one.name.startswith("lightning.")]
    if launcher == "python" and by_lightning and not {*around} & {*STARTERS}:
        launcher = "lightning"
        found.settings += own_ranks.of_lightning(by_lightning)
    elif launcher == "python" and (
        workers := [one for one in given.settings if one.name == "ray.ranks"]
    ):
        launcher = "ray"
        found.settings += [msgspec.structs.replace(one, name="ranks") for one in workers]
    elif launcher == "python":
        found.settings += own_ranks.of_python(found.settings, around)
    first = command.words[0]
    return Launch(
        command=found.command,
        launcher=launcher,
        around=around,
        file=first.file,
        line=first.line,
        script=script.text,
        is_module=is_module,
        arguments=tuple(word.text for word in arguments),
        settings=(*found.settings, *given.settings),
        files=tuple(dict.fromkeys(found.files)),
        unknown=(*found.unknown, *given.unknown),
        unresolved=tuple(found.unresolved),
    )


def _is_missing(script: Word, found: _Found, *, is_module: bool) -> bool:
    """Whether the script of a typed command should be a file here, and is none."""
    elsewhere = any(one.name == "elsewhere" for one in found.settings)
    if script.file or not script.resolved or elsewhere:
        return False
    if is_module:
        return script_settings.is_absent_module(script.text, found.folder)
    return script.text.endswith(".py") and not files.is_there(found.folder / script.text)
