"""The decoder and how its weights arrive."""
