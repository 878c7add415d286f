"""The verb `auto`: the other verbs one after another, from a folder of images to a report.

What belongs here: which command comes next and with which options, what is complete already, and
how many training steps fit into the minutes that are given. The work itself is that of the other
packages; nothing here converts, trains or evaluates.
"""
