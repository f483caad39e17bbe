"""Sound files of launches, and the findings about a command with them."""

from __future__ import annotations

from pathlib import Path

from ddoctor import engine
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding
from tests.launched import launched

SCRIPT = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--verbose", action="store_true")
    parser.parse_args()
"""

# accelerate's own file for two GPUs, as `accelerate config` writes it.
TWO_GPUS = """
    compute_environment: LOCAL_MACHINE
    debug: false
    distributed_type: MULTI_GPU
    downcast_bf16: 'no'
    gpu_ids: all
    machine_rank: 0
    main_training_function: main
    mixed_precision: bf16
    num_machines: 1
    num_processes: 2
    rdzv_backend: static
    same_network: true
    tpu_env: []
    tpu_use_cluster: false
    tpu_use_sudo: false
    use_cpu: false
"""

MANIFEST = """
    apiVersion: kubeflow.org/v1
    kind: PyTorchJob
    spec:
      nprocPerNode: "4"
      pytorchReplicaSpecs:
        Master:
          replicas: 1
          template: &template
            spec:
              containers:
              - name: pytorch
                image: img
                command: ["torchrun", "--nnodes=3", "--nproc-per-node=4", "train.py"]
                args: ["--lr", "1e-3"]
                env:
                - {name: NCCL_DEBUG, value: INFO}
                resources:
                  limits: {nvidia.com/gpu: 4, memory: 64Gi}
        Worker:
          replicas: 2
          template: *template
"""

HOSTS = "# ours\nworker-1 slots=8\nworker-2 slots=8  # spare\n\n"

FSDP = """
    compute_environment: LOCAL_MACHINE
    distributed_type: FSDP
    fsdp_config:
      fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
      fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
      fsdp_cpu_ram_efficient_loading: true
      fsdp_sync_module_states: true
      fsdp_use_orig_params: true
      fsdp_state_dict_type: SHARDED_STATE_DICT
    machine_rank: 0
    mixed_precision: bf16
    num_machines: 1
    num_processes: 8
"""
ZERO = """
    {
      "train_batch_size": 64,
      "train_micro_batch_size_per_gpu": 4,
      "gradient_accumulation_steps": 2,
      "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}
    }
"""
JOB = """
    #!/bin/bash
    #SBATCH --nodes=2
    #SBATCH --ntasks-per-node=1
    #SBATCH --cpus-per-task=64
    #SBATCH --gpus-per-node=8
    export NCCL_DEBUG=WARN
    srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --node-rank $SLURM_NODEID \\
      --rdzv-endpoint $MASTER:29500 train.py
"""


def told(folder: Path, command: str, *, gpus: int = 0, **texts: str) -> tuple[Finding, ...]:
    """The findings about a launch, on a machine with a number of GPUs."""
    files = {
        "train_py": SCRIPT,
        **dict.fromkeys(("other_py", "pretrain_py", "serve_py", "t_py", "tune_py"), ""),
        "two_yaml": TWO_GPUS,
        "fsdp_yaml": FSDP,
        "ds_json": ZERO,
        "job_sbatch": JOB,
        "pod_yaml": MANIFEST,
    }
    launch = launched(folder, command, **{**files, **texts})
    return engine.examine(Evidence([launch, machine(gpus)]), "doctor").findings


def machine(gpus: int) -> Gpus:
    """So many idle GPUs."""
    return Gpus(
        driver="570.1",
        gpus=tuple(
            Gpu(index=index, name="A100", memory_total=80 * 2**30, memory_used=0)
            for index in range(gpus)
        ),
    )
