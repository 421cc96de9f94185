"""Which requests are sent, and when: plans, lengths, presets, arrivals, pacing, prompts."""
