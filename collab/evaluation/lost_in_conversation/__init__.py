"""Lost in conversation as a test of models: simulations run, and aptitude and unreliability from what they gave."""
