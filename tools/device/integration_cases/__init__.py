"""The cases of tools/device/integrations.py: each module has CASES, name -> function(draw), which returns what it measured."""
