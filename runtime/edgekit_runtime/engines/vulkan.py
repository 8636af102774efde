"""The GPUs that Vulkan's loader finds, by name.

    devices()                   # ("V3D 7.1.7.0",), or ("SwiftShader Device (Subzero)",): a device in software

Which of several an engine takes is the engine's choice. The drivers are loaded, so call it where an engine runs on one.
"""

from __future__ import annotations

import ctypes

_LOADER = "libvulkan.so.1"
_MOST = 16
_NAME = slice(20, 276)
"""Of VkPhysicalDeviceProperties, which has 824 bytes."""


def devices() -> tuple[str, ...]:
    """Empty without a loader or a driver."""
    try:
        loader = ctypes.CDLL(_LOADER)
    except OSError:
        return ()
    create_info = (ctypes.c_uint64 * 8)(1)  # VkInstanceCreateInfo: its type, no layers, no extensions
    instance, count, found = ctypes.c_void_p(), ctypes.c_uint32(_MOST), (ctypes.c_void_p * _MOST)()
    if loader.vkCreateInstance(create_info, None, ctypes.byref(instance)):
        return ()
    loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), found)
    names = []
    for device in found[: count.value]:
        properties = ctypes.create_string_buffer(1024)
        loader.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
        names.append(properties.raw[_NAME].split(b"\0")[0].decode(errors="replace"))
    loader.vkDestroyInstance(instance, None)
    return tuple(names)
