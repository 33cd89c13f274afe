"""The main job: a ResNet and a GPT trained on the device, then one step of each checked op by op."""
