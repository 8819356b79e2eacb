"""Model families: what a config.json means, the step as it is traced, and checkpoint names."""
