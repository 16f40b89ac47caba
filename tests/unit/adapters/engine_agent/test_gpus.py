from __future__ import annotations

import pytest

from adapters.engine_agent.gpus import GpuError, find, read_products, type_of

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("product", "label"),
    [
        (H100, "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Blackwell"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-MIG-1g.10gb"),
        ("NVIDIA", "NVIDIA"),
        ("40GB", "40GB"),
    ],
)
def test_a_product_becomes_a_price_books_label(product, label):
    assert type_of(product) == label


def host(*products: str) -> dict[str, str]:
    return {key: p for i, p in enumerate(products) for key in (str(i), f"GPU-{i}abc-def")}


def test_type_and_count_follow_the_engine():
    found = find(host(H100, H100, H100, H100), None, engine=2)
    assert (found.type, found.count, found.note) == ("H100", 2, "")


@pytest.mark.parametrize("visible", ["1", "1,7,0", "GPU-1abc", "GPU-1abc-def", " 1 "])
def test_only_visible_ones_count(visible):
    assert find(host(H100, "NVIDIA L4"), visible, engine=1).type == "L4"


def test_fewer_than_the_engine_uses_is_an_error():
    with pytest.raises(GpuError, match="use 4 GPUs, but 1 are visible"):
        find(host(H100, H100), "0", engine=4)
    assert find(host(H100), "0", engine=4, gpu_count=4).count == 4


def test_a_mixed_host_needs_a_word():
    with pytest.raises(GpuError, match="different types"):
        find(host(H100, "NVIDIA L4"), None, engine=1)
    assert find(host(H100, "NVIDIA L4"), None, engine=1, gpu_type="L4").note


def test_what_is_given_wins_with_a_word_about_what_is_there():
    assert find(host(H100), None, engine=1, gpu_type="h100-sxm").note == ""
    found = find(host("NVIDIA L4"), None, engine=1, gpu_type="H100", gpu_count=3)
    assert (found.type, found.count) == ("H100", 3)
    assert "NVML reports L4" in found.note


def test_without_a_gpu_the_type_must_be_given():
    with pytest.raises(GpuError, match="--gpu-type"):
        find({}, None, engine=1)
    assert find({}, None, engine=2, gpu_type="cpu").count == 2


def test_a_machine_without_a_driver_has_no_products(monkeypatch):
    import pynvml

    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    assert read_products() == {}


def test_nvml_is_read_by_index_uuid_and_slice(monkeypatch):
    import pynvml

    fake = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: "gpu",
        "nvmlDeviceGetUUID": lambda h: f"{h}-uuid".encode(),
        "nvmlDeviceGetName": lambda h: H100 if h == "gpu" else f"{H100} MIG 1g.10gb",
        "nvmlDeviceGetMaxMigDeviceCount": lambda h: 2,
    }

    def slice_of(handle: str, index: int) -> str:
        if index:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "mig"

    for name, function in fake.items():
        monkeypatch.setattr(pynvml, name, function)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", slice_of)
    assert read_products() == {"0": H100, "gpu-uuid": H100, "mig-uuid": f"{H100} MIG 1g.10gb"}
