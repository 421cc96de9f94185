"""The scheduler and everything it owns. Clock-free, torch-free, seeded: `now_ns` is always an argument."""
