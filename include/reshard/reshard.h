/*
 * libreshard: changes how the state of a training job is divided over devices. This header includes
 * all the others, but for move_mpi.h, which needs mpi.h.
 *
 * The nouns, in the order in which one meets them: a *space* (all tensors times all roles of a
 * job), a *layout* (tp=2,pp=4,...), a *placement* (who has which box, and where its bytes lie), a
 * *plan* (the copies that turn one placement into another), a *move* (running it), a *certificate*
 * (proof that the content is the same). docs/ARCHITECTURE.md is the map.
 */
#ifndef RESHARD_H
#define RESHARD_H

#include "reshard/arena.h"
#include "reshard/box.h"
#include "reshard/certificate.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"
#include "reshard/dialect.h"
#include "reshard/dtype.h"
#include "reshard/elastic.h"
#include "reshard/group.h"
#include "reshard/layout.h"
#include "reshard/ledger.h"
#include "reshard/memory.h"
#include "reshard/model.h"
#include "reshard/move.h"
#include "reshard/native.h"
#include "reshard/optimizer.h"
#include "reshard/placement.h"
#include "reshard/plan.h"
#include "reshard/space.h"
#include "reshard/status.h"
#include "reshard/version.h"

#endif
