"""The experiments of the paper: data sets, networks, training, settings, results, tables and figures."""
