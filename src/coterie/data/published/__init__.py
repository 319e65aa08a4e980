"""Published datasets: downloads, readers and preparation."""
