# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""The declarations of training: optim (optimizers), of_torch (optimizers and schedulers of torch), updates/
(optimizers whose code is compiled), schedules (learning rates), loss_scale (the scale of the loss in fp16)."""
