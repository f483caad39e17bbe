"""Launchers: where the source of their options is, and what each option means."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ddoctor.launch import modules
from ddoctor.launch.option_source import Option, Options, options_of


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A program that starts ranks, or another launcher."""

    title: str
    """As it is called in sentences."""
    package: str = ""
    sources: tuple[str, ...] = ()
    """Files of its options, within the package."""
    takes: tuple[str, ...] = ()
    """Its options with a value, where no such file is installed: the usual ones."""
    flags: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    """Those with two values."""
    means: Mapping[str, str]
    """The names of ``Setting`` by those of the options."""
    defaults: Mapping[str, str]
    """What it takes for what is not given."""

    @property
    def options(self) -> Options:
        """Its options: those of the installed version, else the usual ones."""
        return _installed(self.package, self.sources) or Options(
            tuple(
                Option(names=tuple(names.split()), takes=number)
                for number, rows in enumerate((self.flags, self.takes, self.pairs))
                for names in rows
            )
        )

    @property
    def is_known(self) -> bool:
        """Whether its version is installed here, so that an unknown option is a mistake."""
        return _installed(self.package, self.sources) is not None


@cache
def _installed(package: str, sources: tuple[str, ...]) -> Options | None:
    trees = [installed_source(package, one) for one in sources]
    rows = tuple(row for tree in trees if tree is not None for row in options_of(tree).rows)
    return Options(rows) if rows else None


def installed_source(package: str, source: str) -> ast.Module | None:
    """The syntax tree of a module of an installed package, which is not imported."""
    found = modules.installed(package, source)
    return found.tree if found is not None else None


TORCHRUN = Launcher(
    title="torchrun",
    package="torch",
    sources=("distributed/run.py",),
    takes=(
        *("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"),
        *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts"),
        *("--monitor-interval", "--start-method", "--role", "--log-dir", "-r --redirects"),
        *("-t --tee", "--local-ranks-filter", "--local-addr"),
    ),
    flags=("--standalone", "-m --module", "--no-python", "--run-path"),
    means={
        "nnodes": "hosts",
        "nproc_per_node": "ranks-per-host",
        "node_rank": "host-rank",
        "master_addr": "main-address",
        "master_port": "main-port",
        "rdzv_backend": "rendezvous",
        "rdzv_endpoint": "endpoint",
        "standalone": "standalone",
    },
    # torch/distributed/run.py, get_args_parser.
    defaults={"hosts": "1", "ranks-per-host": "1"},
)
TORCH_LAUNCH = Launcher(
    title="torch.distributed.launch",
    package="torch",
    sources=("distributed/run.py", "distributed/launch.py"),
    takes=TORCHRUN.takes,
    flags=(*TORCHRUN.flags, "--use-env"),
    means=TORCHRUN.means,
    defaults=TORCHRUN.defaults,
)
ACCELERATE = Launcher(
    title="accelerate launch",
    package="accelerate",
    sources=("commands/launch.py",),
    takes=(
        *("--config_file", "--num_processes", "--num_machines", "--machine_rank", "--gpu_ids"),
        *("--main_process_ip", "--main_process_port", "--mixed_precision", "--zero_stage"),
        *("--gradient_accumulation_steps", "--dynamo_backend", "--deepspeed_config_file"),
        "--num_cpu_threads_per_process",
    ),
    flags=("--multi_gpu", "--cpu", "--use_fsdp", "--use_deepspeed", "-m --module", "--debug"),
    means={
        "num_processes": "ranks",
        "num_machines": "hosts",
        "machine_rank": "host-rank",
        "main_process_ip": "main-address",
        "main_process_port": "main-port",
        "rdzv_backend": "rendezvous",
        "mixed_precision": "precision",
        "gradient_accumulation_steps": "accumulation",
        "gpu_ids": "devices",
        "distributed_type": "strategy",
        "deepspeed_config_file": "deepspeed-file",
        "zero_stage": "zero-stage",
        "use_cpu": "cpu",
        "cpu": "cpu",
        "multi_gpu": "multi-gpu",
    },
    defaults={"hosts": "1"},
)
DEEPSPEED = Launcher(
    title="deepspeed",
    package="deepspeed",
    sources=("launcher/runner.py",),
    takes=(
        *("-H --hostfile", "-i --include", "-e --exclude", "--num_nodes", "--num_gpus"),
        *("--master_port", "--master_addr", "--launcher", "--launcher_args", "--node_rank"),
        *("--bind_core_list", "--autotuning", "--ssh_port", "--min_elastic_nodes"),
    ),
    flags=("--module", "--no_python", "--no_local_rank", "--force_multi", "--no_ssh"),
    means={
        "num_nodes": "hosts",
        "num_gpus": "ranks-per-host",
        "master_addr": "main-address",
        "master_port": "main-port",
        "node_rank": "host-rank",
    },
    defaults={"hosts": "1", "ranks-per-host": "all"},
)
# lightning_fabric/cli.py, which uses click.
FABRIC = Launcher(
    title="fabric run",
    takes=(
        *("--accelerator", "--strategy", "--devices", "--num-nodes --num_nodes", "--precision"),
        *("--node-rank --node_rank", "--main-address --main_address", "--main-port --main_port"),
    ),
    means={
        "num_nodes": "hosts",
        "devices": "ranks-per-host",
        "node_rank": "host-rank",
        "main_address": "main-address",
        "main_port": "main-port",
        "precision": "precision",
        "strategy": "strategy",
    },
    defaults={"hosts": "1", "ranks-per-host": "1"},
)
# slurm.schedmd.com/srun.html, sbatch.html and salloc.html, and pyxis, whose options say container.
SLURM = Launcher(
    title="srun",
    takes=(
        *("-N --nodes", "-n --ntasks", "--ntasks-per-node", "-c --cpus-per-task", "-G --gpus"),
        *("--gpus-per-node", "--gpus-per-task", "--gres", "-t --time", "--mem", "--mem-per-cpu"),
        *("-p --partition", "-A --account", "-J --job-name", "-o --output", "-e --error"),
        *("-w --nodelist", "-x --exclude", "--export", "-q --qos", "-C --constraint", "--mpi"),
        *("--cpu-bind", "--gpu-bind", "-m --distribution", "-D --chdir", "-a --array", "--signal"),
        *("-d --dependency", "--ntasks-per-gpu", "--mem-per-gpu", "--container-image"),
        *("--container-mounts", "--jobid", "--mail-type", "--mail-user", "--export-file"),
        *("--reservation", "--gpus-per-socket", "--tres-per-task", "--tres-per-node"),
        *("--cpus-per-gpu", "--ntasks-per-socket", "--ntasks-per-core", "--sockets-per-node"),
        *("--cores-per-socket", "--threads-per-core", "--hint", "-b --begin", "--comment"),
        *("--open-mode", "--time-min", "--deadline", "--switches", "--mincpus", "--tmp"),
        *("-i --input", "-L --licenses", "-M --clusters", "--wckey", "--gpu-freq", "--cpu-freq"),
        *("--network", "--profile", "--priority", "--tres-bind", "--container-name"),
        *(
            "--container-workdir",
            "--container-env",
            "-r --relative",
            "--container",
            "--bb",
            "--bbf",
        ),
        *("--container-id", "--acctg-freq", "-B --extra-node-info", "-S --core-spec", "--batch"),
        *("-F --nodefile", "--prefer", "--gres-flags", "--delay-boot", "--thread-spec", "--extra"),
        *("--cluster-constraint", "--mcs-label", "--mem-bind", "--power", "--prolog", "--epilog"),
        *("--task-prolog", "--task-epilog", "--het-group", "--gid", "--uid", "--wait-all-nodes"),
        *("--kill-on-invalid-dep", "--segment", "--resources", "--runtime", "--treewidth"),
        *("--mem-update", "--msg-timeout", "--slurmd-debug", "--ignore-signals", "--wrap"),
        "--bcast-exclude",
    ),
    flags=(
        # What follows some of these after "=" is optional.
        *("-K --kill-on-bad-exit", "--nice", "-I --immediate", "-O --overcommit", "-H --hold"),
        *("-s --oversubscribe", "--contiguous", "--parsable", "-Q --quiet", "--spread-job"),
        *("--container-mount-home", "--no-container-mount-home", "--container-writable"),
        *("-l --label", "--exclusive", "--requeue", "--no-requeue", "-u --unbuffered"),
        *("--overlap", "--pty", "--exact", "-W --wait", "-k --no-kill", "-v --verbose"),
        *("--get-user-env", "--propagate", "--no-container-entrypoint", "--container-entrypoint"),
        *("-X --disable-status", "-Z --no-allocate", "--whole", "--bcast", "-E --preserve-env"),
        *("--reboot", "--use-min-nodes", "--stepmgr", "--test-only", "--no-bell", "--no-shell"),
    ),
    means={
        "nodes": "nodes",
        "ntasks": "tasks",
        "ntasks_per_node": "tasks-per-host",
        "cpus_per_task": "cpus-per-task",
        "gpus": "gpus",
        "gpus_per_node": "gpus-per-host",
        "gpus_per_task": "gpus-per-task",
        "gres": "gres",
        "time": "time-limit",
        "mem": "memory-per-host",
    },
    defaults={},
)
# What waits for the end of a job in sbatch limits it in srun.
SRUN = replace(
    SLURM,
    takes=(*SLURM.takes, "-W --wait", "-T --threads"),
    flags=tuple(one for one in SLURM.flags if one != "-W --wait"),
)
# Open MPI: docs/man-openmpi/man1/mpirun.1.rst, and prrte's src/mca/schizo/ompi/schizo_ompi.c;
# MPICH and Intel: src/pm/hydra/mpiexec/options.c.
MPIRUN = Launcher(
    title="mpirun",
    takes=(
        *("-np -n -c --np --n", "-N --npernode", "-H --host", "--hostfile -machinefile"),
        *(
            "-x",
            "--map-by",
            "--bind-to",
            "--rank-by",
            "-ppn -perhost",
            "-wdir --wd",
            "-hosts",
            "-f",
        ),
        *("--oversubscribe-limit", "--npersocket", "--ppr", "--rankfile -rf", "--path", "--prefix"),
        *("--default-hostfile", "--cpu-set", "--cpu-list", "--cpus-per-proc", "--cpus-per-rank"),
        *("--output-filename", "--output", "--stdin", "--xterm", "--tune", "--timeout", "--am"),
        *("--preload-files", "--report-uri", "--report-pid", "--launch-agent", "--personality"),
        *("--display", "--max-restarts", "--runtime-options", "--with-ft", "--app", "--tmpdir"),
        *("-genvlist", "-envlist", "-launcher -bootstrap", "-launcher-exec -bootstrap-exec"),
        *("-rmk", "-iface", "-configfile", "-binding", "-membind", "-topolib", "-demux", "-usize"),
        *("-outfile-pattern", "-errfile-pattern", "-prepend-pattern", "-order-nodes", "-profile"),
    ),
    flags=(
        *("--allow-run-as-root", "--oversubscribe", "--tag-output", "-v --verbose", "--pernode"),
        *("--report-bindings", "-genvall", "-genvnone", "-envall", "-envnone", "-l", "-q --quiet"),
    ),
    pairs=("--mca -mca", "--gmca", "--omca", "--pmixmca", "--prtemca", "-genv", "-env"),
    means={"np": "tasks", "npernode": "tasks-per-host", "ppn": "tasks-per-host"},
    defaults={},
)
