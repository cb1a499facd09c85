"""The GPU gauges, from a driver of our own: there is no GPU where these tests run."""

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, generate_latest

from worker.server.gpu import GpuCollector


class TwoGpus:
    """NVML's names, as the package spells them."""

    NVMLError = OSError
    is_well = True

    def nvmlDeviceGetCount(self) -> int:
        if not self.is_well:
            raise OSError("the driver is gone")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=handle * 1000, total=5000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=50 * handle)


def test_each_gpu_has_its_gauges_while_the_driver_answers() -> None:
    registry, gpus = CollectorRegistry(), TwoGpus()
    registry.register(GpuCollector(gpus))
    lines = generate_latest(registry).decode().splitlines()
    assert 'tiergate_gpu_memory_used_bytes{gpu="1"} 1000.0' in lines
    assert 'tiergate_gpu_memory_total_bytes{gpu="0"} 5000.0' in lines
    assert 'tiergate_gpu_utilization_perc{gpu="1"} 0.5' in lines
    gpus.is_well = False
    assert generate_latest(registry) == b""
