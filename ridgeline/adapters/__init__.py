"""LoRA adapters: their numbers, and what they add to the rows that ask for them."""
