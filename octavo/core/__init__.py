"""Pure core: scheduling and KV accounting. Standard library only."""
