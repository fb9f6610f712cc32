"""What the benchmarks share: trials, records, tables, measurements."""
