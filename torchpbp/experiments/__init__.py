"""Experiments: functions that fit models and measure them, run by ``train.py`` with the settings in conf/.

Each experiment is named in its YAML file by the full path of its function, ``_target_: torchpbp.experiments.compare.task.compare``: a shorter
name could not tell the function from the folder.
"""
