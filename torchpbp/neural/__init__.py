"""What is made for networks: PBP as a layer, and the training of stage-1 nets with Lightning."""
