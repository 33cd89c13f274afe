"""The examination: PyTorch's own operator database (OpInfo), asked question by question of the device.

``questions`` holds what is asked of an entry, ``worker`` asks in a process of its own so that a crash or a hang is the
failure of one task only, ``examiner`` feeds workers and collects answers, ``expectations`` says which answers are known
to be wrong and why, ``summary`` counts.
"""
