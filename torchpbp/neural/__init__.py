"""PBP as a layer of networks, and the training of stage-1 nets with Lightning."""
