"""What commands share: options, bars, tables and errors."""
