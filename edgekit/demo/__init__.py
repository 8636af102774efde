"""The demo: the main job on a real network and real photos, out of ordinary packages."""
