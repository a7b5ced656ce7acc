"""Example schemes and golden adapters of each group, and what its tests share."""
