"""What every command does around its own work: folders, models behind a journal, budgets, progress, resuming."""
