"""Utilisation and memory of the GPUs, where there are any and `pynvml` (the package nvidia-ml-py) is installed."""

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class GpuCollector(Collector):
    """Every GPU that the driver shows to this process; the label is the driver's index."""

    def __init__(self, nvml: Any) -> None:
        """nvml: the module, initialised."""
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        try:
            yield from self._read()
        except self._nvml.NVMLError:
            # A failing driver must not take down the other metrics.
            return

    def _read(self) -> list[Metric]:
        nvml = self._nvml
        used = GaugeMetricFamily("tiergate_gpu_memory_used_bytes", "Memory in use on the GPU.", labels=["gpu"])
        total = GaugeMetricFamily("tiergate_gpu_memory_total_bytes", "Memory of the GPU.", labels=["gpu"])
        busy = GaugeMetricFamily(
            "tiergate_gpu_utilization_perc", "Share of time that it computed, 0 to 1.", labels=["gpu"]
        )
        for i in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            used.add_metric([str(i)], memory.used)
            total.add_metric([str(i)], memory.total)
            busy.add_metric([str(i)], nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        return [used, total, busy]


def find_gpus() -> GpuCollector | None:
    """None without the package, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return GpuCollector(pynvml) if pynvml.nvmlDeviceGetCount() else None
    except pynvml.NVMLError:
        return None
