"""English as tasks are written in it: sentences, and the numbers in them."""
