"""What is asked of a server, and when: plans, laws, presets, arrivals, pacing, prompts. Knows nobody else."""
