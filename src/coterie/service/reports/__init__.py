"""What a team steers by: sums over time, intervals, what the page shows, and whether a loop still explores."""
