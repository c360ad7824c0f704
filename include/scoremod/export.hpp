#pragma once

/// Marks what libscoremod.so exports; everything else has hidden visibility.
#define SCOREMOD_API __attribute__((visibility("default")))
