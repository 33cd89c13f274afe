"""What ``macatensor profile`` runs: a program is measured step by step, and what slows it down is named by its line."""
