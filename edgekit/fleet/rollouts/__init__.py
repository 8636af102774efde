"""A new version, wave by wave: its state, its boards, and the test that judges it."""
