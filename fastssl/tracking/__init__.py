"""What a run writes down and shows: its folder, metrics, TensorBoard, console and environment.

Nothing here trains or evaluates; the engine hands over what is to be recorded.
"""
