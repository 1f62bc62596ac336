"""From trees to datasets: the builder, views, and export."""
