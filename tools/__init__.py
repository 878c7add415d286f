"""Programs for maintainers: benchmarks, records and tables. They are not installed."""
