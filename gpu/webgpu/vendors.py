"""Vendors of GPUs, by the number that drivers report or by the name of the adapter."""

from __future__ import annotations

VENDOR_IDS = {
    0x10DE: "NVIDIA",
    0x1002: "AMD",
    0x8086: "Intel",
    0x106B: "Apple",
    0x5143: "Qualcomm",
    0x4D4F4351: "Qualcomm",  # under DX12
    0x13B5: "ARM",
}
NAMES = {
    "nvidia": "NVIDIA",
    "geforce": "NVIDIA",
    "radeon": "AMD",
    "intel": "Intel",
    "apple": "Apple",
    "adreno": "Qualcomm",
    "mali": "ARM",
}
"""Parts of adapter names. Metal reports no numbers."""


def vendor_of(vendor_id: int, name: str) -> str:
    """Return the vendor of an adapter; "" if it is none of these."""
    if vendor_id in VENDOR_IDS:
        return VENDOR_IDS[vendor_id]
    return next((vendor for part, vendor in NAMES.items() if part in name.lower()), "")
