from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.software import Environment, NcclLibrary, Package, Software, Torch, Variable
from ddoctor.models import Severity
from tests.conftest import Findings

CAUSE = "nccl-library-mismatch"
SYSTEM = "/opt/nccl/lib/libnccl.so.2"


def library(version: str, cuda: str = "12.8", *found: str) -> NcclLibrary:
    return NcclLibrary(
        path=SYSTEM, found=found or ("torch", "LD_LIBRARY_PATH"), version=version, cuda=cuda
    )


def software(
    *libraries: NcclLibrary,
    built_with: str | None = "2.27.3",
    host: str = "a",
    loaded: str | None = SYSTEM,
    packages: tuple[Package, ...] = (),
) -> Software:
    return Software(
        host=host,
        python="3.11.9",
        torch=Torch(version="2.8.0+cu128", cuda="12.8", nccl=built_with, nccl_library=loaded),
        nccl_libraries=libraries,
        packages=packages,
    )


def driver(cuda: tuple[int, int] | None) -> Gpus:
    return Gpus(host="a", driver="570.86.15", cuda=cuda, gpus=())


def loader_path(value: str) -> Environment:
    return Environment(host="a", variables=(Variable(name="LD_LIBRARY_PATH", value=value),))


def test_an_older_one_from_the_loaders_path(findings: Findings) -> None:
    sections = software(library("2.18.3")), loader_path("/opt/nccl/lib:/usr/local/cuda/lib64")
    (finding,) = findings(CAUSE, *sections)
    assert finding.severity is Severity.WARNING
    assert "built with NCCL 2.27.3 and loads 2.18.3" in finding.because
    assert finding.fixes[0].paste == "export LD_LIBRARY_PATH=/usr/local/cuda/lib64"


def test_the_fix_for_one_that_is_preloaded(findings: Findings) -> None:
    (finding,) = findings(CAUSE, software(library("2.18.3", "12.8", "torch", "LD_PRELOAD")))
    assert finding.fixes[0].paste == "unset LD_PRELOAD"


def test_a_newer_one_is_only_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, software(library("2.28.9")))
    assert finding.severity is Severity.NOTE


def test_one_for_a_newer_cuda_than_the_driver_runs(findings: Findings) -> None:
    (finding,) = findings(CAUSE, software(library("2.27.3", "13.0")), driver((12, 8)))
    assert finding.severity is Severity.ERROR
    assert "CUDA 13.0" in finding.because


def test_a_torch_that_cannot_be_imported_for_it(findings: Findings) -> None:
    section = Software(
        host="a",
        python="3.11.9",
        torch_error="ImportError: /x/libtorch_cuda.so: undefined symbol: ncclCommRegister",
        nccl_libraries=(library("2.14.3", "11.7", "LD_LIBRARY_PATH"),),
    )
    (finding,) = findings(CAUSE, section, loader_path("/opt/nccl/lib"))
    assert finding.severity is Severity.ERROR
    assert "lacks ncclCommRegister" in finding.because
    assert f"{SYSTEM} is 2.14.3" in finding.because
    assert finding.fixes[0].paste == "unset LD_LIBRARY_PATH"


def test_wheels_for_two_releases_of_cuda(findings: Findings) -> None:
    packages = (
        Package(name="nvidia-nccl-cu11", version="2.21.5"),
        Package(name="nvidia-nccl-cu12", version="2.27.3"),
    )
    (finding,) = findings(CAUSE, software(library("2.27.3"), packages=packages))
    assert "pip uninstall -y nvidia-nccl-cu11 nvidia-nccl-cu12" in finding.fixes[0].paste


def test_nodes_with_different_versions(findings: Findings) -> None:
    nodes = [software(built_with="2.27.3", host=f"node-{n}", loaded=None) for n in range(3)]
    (finding,) = findings(CAUSE, *nodes, software(built_with="2.26.2", host="odd", loaded=None))
    assert finding.severity is Severity.ERROR
    assert finding.where.hosts == ("odd",)
    assert "2.27.3 on 3 of 4 nodes" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        software(library("2.27.3")),
        software(library("2.27.3"), loaded=None),
        # an older one that lies about, but is not the one that torch loads
        software(
            library("2.27.3"),
            NcclLibrary(path="/usr/lib/libnccl.so.2", found=("ldconfig",), version="2.18.3"),
        ),
        software(NcclLibrary(path=SYSTEM, found=("torch",))),  # says nothing about itself
        software(library("2.18.3"), built_with=None),
        software(packages=(Package(name="nvidia-nccl-cu12", version="2.27.3"),), loaded=None),
        Software(host="a", python="3.11.9", torch_error="No module named 'torch'"),
        Software(
            host="a",
            python="3.11.9",
            torch_error="ImportError: x.so: undefined symbol: cublasLtFoo",
        ),
    ],
)
def test_quiet_where_they_belong_together(findings: Findings, section: Software) -> None:
    assert findings(CAUSE, section, driver((12, 8)), loader_path("/opt/nccl/lib")) == ()


def test_quiet_about_a_build_for_another_minor_release_of_cuda(findings: Findings) -> None:
    assert findings(CAUSE, software(library("2.27.3", "12.9")), driver((12, 4))) == ()
    assert findings(CAUSE, software(library("2.27.3", "11.8")), driver((12, 4))) == ()
    assert findings(CAUSE, software(library("2.27.3", "13.0")), driver(None)) == ()


def test_quiet_about_equal_nodes(findings: Findings) -> None:
    nodes = [software(library("2.27.3"), host=f"node-{n}") for n in range(3)]
    assert findings(CAUSE, *nodes) == ()
