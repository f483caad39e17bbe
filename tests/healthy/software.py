"""One environment in which driver, CUDA, torch and NCCL belong together."""

from __future__ import annotations

from ddoctor.evidence.software import NcclLibrary, Package, Software, Torch
from tests.healthy.host import HOST

SITE = "/opt/venv/lib/python3.12/site-packages"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"

SECTIONS = (
    Software(
        host=HOST,
        python="3.12.9",
        torch=Torch(
            version="2.8.0+cu128",
            path=f"{SITE}/torch",
            cuda="12.8",
            nccl="2.27.3",
            cudnn="91002",
            architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
            nccl_library=NCCL,
        ),
        nccl_libraries=(
            NcclLibrary(path=NCCL, found=("torch", "nvidia-nccl"), version="2.27.3", cuda="12.8"),
        ),
        packages=(
            Package(name="accelerate", version="1.10.1"),
            Package(name="nvidia-nccl-cu12", version="2.27.3"),
            Package(name="transformers", version="4.56.1"),
        ),
    ),
)
