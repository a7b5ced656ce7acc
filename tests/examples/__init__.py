"""Example schemes and golden adapters of each group of encodings, and what its test files share."""
